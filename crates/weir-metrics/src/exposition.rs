//! The text that Prometheus reads, in either of its two forms.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use weir_core::accept::wish;
use weir_shm::MemoryUsage;

use crate::books::Books;
use crate::families::Families;

/// A form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus's own, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Exposition {
    /// The form that an `Accept` header prefers: OpenMetrics only where the header
    /// names it, since whoever takes anything may know nothing of it.
    pub fn preferred(accept: Option<&str>) -> Self {
        let Some(accept) = accept else { return Self::Text };
        let [text, open_metrics] =
            [Self::Text, Self::OpenMetrics].map(|form| wish(accept, form.content_type()));
        let is_named = open_metrics.specificity >= 2 && open_metrics.weight > 0;
        if is_named && open_metrics.weight >= text.weight { Self::OpenMetrics } else { Self::Text }
    }

    /// The value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics as they are now; `memory` of the host's own store, if there is one.
///
/// # Errors
///
/// None: a text takes whatever is written to it.
pub fn tell(
    books: &Arc<Books>,
    memory: Option<MemoryUsage>,
    form: Exposition,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families { books: Arc::clone(books), memory }));
    let mut told = String::new();
    match form {
        Exposition::Text => prometheus_text::encode(&mut told, &registry)?,
        Exposition::OpenMetrics => text::encode(&mut told, &registry)?,
    }
    Ok(told)
}

#[cfg(test)]
mod tests;

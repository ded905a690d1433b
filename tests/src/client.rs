//! An HTTP client that takes every status as an answer.

use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::http::{HeaderMap, Request};

/// A client, keeping its connections unless told otherwise.
pub struct Client {
    agent: Agent,
    base: String,
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: String,
    /// From the first byte sent to the last byte received.
    pub elapsed: Duration,
}

impl Client {
    /// A client of a server at this port.
    pub fn new(port: u16) -> Self {
        Self::with(port, 100, Duration::from_secs(30))
    }

    /// A client that waits for minutes.
    pub fn patient(port: u16) -> Self {
        Self::with(port, 0, Duration::from_secs(300))
    }

    /// A client that makes a connection for every request.
    pub fn without_keepalive(port: u16) -> Self {
        Self::with(port, 0, Duration::from_secs(30))
    }

    fn with(port: u16, idle: usize, timeout: Duration) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(idle)
            .max_idle_connections_per_host(idle)
            .timeout_global(Some(timeout))
            .build()
            .new_agent();
        Self { agent, base: format!("http://127.0.0.1:{port}") }
    }

    /// GET.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    /// GET with headers.
    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers)
    }

    /// Any request without a body.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.try_ask(method, path, headers)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// The same, where a connection may fail.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Answer, ureq::Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let begun = Instant::now();
        let mut response = self.agent.run(request.body(()).expect("a request"))?;
        let body = response.body_mut().read_to_string()?;
        Ok(Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body,
            elapsed: begun.elapsed(),
        })
    }
}

impl Answer {
    /// A header's value, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("ASCII"))
    }

    /// A header's value as a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    /// Whether any header of ours is there.
    pub fn has_limit_headers(&self) -> bool {
        self.headers.keys().any(|name| name.as_str().starts_with("ratelimit"))
    }
}

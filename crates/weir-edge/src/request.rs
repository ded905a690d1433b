//! What a request says, as Lua writes it.

use weir_core::rate::MAX_LIMIT;
use weir_redis::Source;

/// Where a value came from: see [`crate::asking::Request`].
pub(crate) fn source_of(index: i64) -> Source {
    match index {
        0 => Source::Given,
        1.. => Source::Template(index as usize - 1),
        _ => Source::Address,
    }
}

/// A cost as the operator's Lua gave it, in units.
pub(crate) fn units(number: f64) -> Result<u64, String> {
    if number > MAX_LIMIT as f64 {
        // More than any limit can be: it is refused as what never fits.
        return Ok(MAX_LIMIT);
    }
    if number.fract() != 0.0 || number.is_nan() || number < 0.0 {
        let shown = match number.abs() {
            0.0..1e17 => number.to_string(),
            _ => format!("{number:e}"),
        };
        return Err(format!("the cost must be a whole number from 0 to {MAX_LIMIT}, not {shown}"));
    }
    Ok(number as u64)
}

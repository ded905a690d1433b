//! What an `Accept` header wants (RFC 9110, section 12.5.1).

use mediatype::{MediaType, MediaTypeList, Name, ReadParams};

const VERSION: Name = Name::new_unchecked("version");

/// How much a header wants a media type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wish {
    /// How specific the closest range is that the header names: from 0, for `*/*`
    /// and where there is none, to 3, for the type and its version.
    pub specificity: u8,
    /// The weight of that range, in thousandths; 0 where there is none.
    pub weight: u16,
}

/// How much an `Accept` header wants `offer`, a media type. What cannot be read is
/// passed over. A range with a version wants no other; what else it names beside
/// the type makes no difference.
pub fn wish(accept: &str, offer: &str) -> Wish {
    let Ok(offer) = MediaType::parse(offer) else { return Wish::default() };
    let specificity = |range: &MediaType| match (range.ty.as_str(), range.subty.as_str()) {
        ("*", "*") => Some(0),
        (_, "*") if range.ty == offer.ty => Some(1),
        _ if (range.ty, range.subty, range.suffix) != (offer.ty, offer.subty, offer.suffix) => None,
        _ => match (range.get_param(VERSION), offer.get_param(VERSION)) {
            (Some(wanted), Some(offered)) => (wanted == offered).then_some(3),
            _ => Some(2),
        },
    };
    MediaTypeList::new(accept)
        .flatten()
        .filter_map(|range| {
            Some(Wish { specificity: specificity(&range)?, weight: weight(&range) })
        })
        .max()
        .unwrap_or_default()
}

fn weight(range: &MediaType) -> u16 {
    let q = range.params().find(|(name, _)| name.as_str().eq_ignore_ascii_case("q"));
    let weight = q.map_or(Some(1.0), |(_, value)| value.as_str().parse::<f32>().ok());
    (weight.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_range_decides_and_a_version_wants_no_other() {
        let offer = "text/plain; version=0.0.4";
        for (accept, specificity, weight) in [
            ("", 0, 0),
            ("image/png", 0, 0),
            ("*/*;q=0.3", 0, 300),
            ("text/*;q=0.4, */*", 1, 400),
            ("text/plain;q=0.5, text/*, */*", 2, 500),
            ("text/plain;version=0.0.4;q=0.6, text/plain, text/*", 3, 600),
            ("TEXT/Plain; VERSION=\"0.0.4\"; Q=0.6", 3, 600),
            ("text/plain;charset=utf-8;q=0.7", 2, 700),
            ("text/plain;version=1.0.0, */*;q=0.1", 0, 100),
            ("text/plain;q=0, */*", 2, 0),
            ("*/*, text/*;q=0.4, text/plain;q=0.2", 2, 200),
        ] {
            assert_eq!(wish(accept, offer), Wish { specificity, weight }, "{accept}");
        }
        let unversioned = wish("text/html;version=5", "text/html");
        assert_eq!(unversioned, Wish { specificity: 2, weight: 1000 });
    }
}

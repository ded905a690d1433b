//! The body of an answer that Weir gives itself.
//!
//! Problem details (RFC 9457) with the problem types of
//! draft-ietf-httpapi-ratelimit-headers-11, as JSON; as text or HTML for a
//! client that asks for that and not for JSON (RFC 9110, section 12.5.1).

use crate::accept::wish;

/// Why a request was answered in place of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There was no room in a limit.
    QuotaExceeded,
    /// Nobody could say, and the policy is closed then.
    ReducedCapacity,
}

impl Reason {
    /// The last part of the problem type's address.
    const fn fragment(self) -> &'static str {
        match self {
            Reason::QuotaExceeded => "quota-exceeded",
            Reason::ReducedCapacity => "temporary-reduced-capacity",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Reason::QuotaExceeded => "Rate limit exceeded",
            Reason::ReducedCapacity => "Temporarily unavailable",
        }
    }
}

/// An answer in place of the upstream's.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// Why.
    pub reason: Reason,
    /// The HTTP status.
    pub status: u16,
    /// The limits without room, by the names under which headers tell of
    /// them (letters, digits, `_`, `-`, `.` and `:`), with commas between them;
    /// empty for none.
    pub violated: &'a str,
    /// `Retry-After`, if there is one.
    pub retry_after: Option<&'a str>,
}

/// In what form an answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// `application/problem+json`.
    Json,
    /// `text/html`.
    Html,
    /// `text/plain`.
    Text,
}

impl Media {
    /// The form that an `Accept` header prefers; JSON where it does not say.
    pub fn preferred(accept: Option<&str>) -> Self {
        // Most clients that are no browsers say one of these.
        let Some(accept) = accept.filter(|&accept| accept != "*/*") else { return Media::Json };
        let weight = |offer| wish(accept, offer).weight;
        // Who refuses JSON is not given it under its other name.
        let json = wish(accept, "application/json").max(wish(accept, "application/problem+json"));
        let (json, html, text) = (json.weight, weight("text/html"), weight("text/plain"));
        if html > json && html >= text {
            Media::Html
        } else if text > json {
            Media::Text
        } else {
            Media::Json
        }
    }

    /// The value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/problem+json",
            Media::Html => "text/html; charset=utf-8",
            Media::Text => "text/plain; charset=utf-8",
        }
    }
}

impl Refusal<'_> {
    /// Appends the body in this form.
    pub fn write(&self, media: Media, body: &mut String) {
        let (title, [begin, wait, end]) = (self.reason.title(), self.advice());
        let mut status = itoa::Buffer::new();
        let status = status.format(self.status);
        match media {
            Media::Json => self.write_json(status, body),
            Media::Text => append(body, &[title, ". ", begin, wait, end, "\n"]),
            Media::Html => append(
                body,
                &[
                    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>",
                    status,
                    " ",
                    title,
                    "</title></head>\n<body><h1>",
                    title,
                    "</h1><p>",
                    begin,
                    wait,
                    end,
                    "</p></body></html>\n",
                ],
            ),
        }
    }

    fn write_json(&self, status: &str, body: &mut String) {
        append(
            body,
            &[
                "{\"type\":\"https://iana.org/assignments/http-problem-types#",
                self.reason.fragment(),
                "\",\"title\":\"",
                self.reason.title(),
                "\",\"status\":",
                status,
            ],
        );
        if !self.violated.is_empty() {
            body.push_str(",\"violated-policies\":[");
            for (index, name) in self.violated.split(',').enumerate() {
                // Their characters need no escapes.
                append(body, &[if index == 0 { "\"" } else { ",\"" }, name, "\""]);
            }
            body.push(']');
        }
        if let Some(seconds) = self.retry_after {
            append(body, &[",\"retry_after\":", seconds]);
        }
        body.push_str("}\n");
    }

    /// A sentence, in three parts.
    fn advice(&self) -> [&str; 3] {
        match self.retry_after {
            Some("1") => ["Try again in ", "1", " second."],
            Some(seconds) => ["Try again in ", seconds, " seconds."],
            None => ["It cannot be served, ", "however long", " you wait."],
        }
    }
}

/// Without the machinery of `format!`, which costs a refusal more than all else of it.
fn append(body: &mut String, texts: &[&str]) {
    texts.iter().for_each(|text| body.push_str(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_given_unless_something_else_is_wanted_more() {
        for (accept, media) in [
            (None, Media::Json),
            (Some(""), Media::Json),
            (Some("*/*"), Media::Json),
            (Some("application/json"), Media::Json),
            (Some("application/problem+json, text/html;q=0.9"), Media::Json),
            (Some("text/html, application/json"), Media::Json),
            (Some("application/json, text/plain, */*"), Media::Json),
            (Some("application/*, text/*;q=0.5"), Media::Json),
            (Some("image/png"), Media::Json),
            (Some("text/html"), Media::Html),
            (Some("TEXT/HTML; Q=0.4"), Media::Html),
            (Some("text/html;level=1"), Media::Html),
            // What browsers send.
            (
                Some("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"),
                Media::Html,
            ),
            (Some("text/html, application/json;q=0.5"), Media::Html),
            (Some("text/*"), Media::Html),
            (Some("text/plain"), Media::Text),
            (Some("text/plain, text/html;q=0.5"), Media::Text),
            (Some("text/plain;q=0.5, */*;q=0.1"), Media::Text),
            (Some("application/json;q=0, */*"), Media::Html),
            (Some("text/html;q=0, text/*"), Media::Text),
            (Some("nonsense, text/plain"), Media::Text),
            (Some("text/html;q=much"), Media::Html),
            (Some("text/html;q=-1"), Media::Json),
            (Some("application/problem+xml, text/html;q=0.9"), Media::Html),
            (Some("text/html+x"), Media::Json),
        ] {
            assert_eq!(Media::preferred(accept), media, "{accept:?}");
        }
    }

    const REFUSAL: Refusal = Refusal {
        reason: Reason::QuotaExceeded,
        status: 429,
        violated: "burst,public:log:1h",
        retry_after: Some("7"),
    };

    fn body(refusal: Refusal, media: Media) -> String {
        let mut body = String::new();
        refusal.write(media, &mut body);
        body
    }

    #[test]
    fn the_json_is_a_problem_of_the_registered_type() {
        assert_eq!(
            body(REFUSAL, Media::Json),
            "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Rate limit exceeded\",\"status\":429,\
             \"violated-policies\":[\"burst\",\"public:log:1h\"],\"retry_after\":7}\n"
        );
        let closed = Refusal {
            reason: Reason::ReducedCapacity,
            status: 503,
            violated: "",
            retry_after: None,
        };
        assert_eq!(
            body(closed, Media::Json),
            "{\"type\":\"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity\",\
             \"title\":\"Temporarily unavailable\",\"status\":503}\n"
        );
    }

    #[test]
    fn people_are_told_how_long_to_wait() {
        assert_eq!(body(REFUSAL, Media::Text), "Rate limit exceeded. Try again in 7 seconds.\n");
        let html = body(Refusal { retry_after: Some("1"), ..REFUSAL }, Media::Html);
        assert_eq!(
            html,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <title>429 Rate limit exceeded</title></head>\n\
             <body><h1>Rate limit exceeded</h1><p>Try again in 1 second.</p></body></html>\n"
        );
        let never = body(Refusal { retry_after: None, ..REFUSAL }, Media::Text);
        assert!(never.contains("however long you wait"), "{never}");
    }
}

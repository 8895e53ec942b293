//! `/`: the console, a page that shows the cluster and asks it questions through the admin API. It holds nothing of the cluster
//! itself, so that whoever reaches the listener may have it; what it then asks for needs the token as any request does.

use actix_web::{HttpResponse, Responder, get, http::header};

/// Nothing from elsewhere, nothing in line, nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

#[get("/")]
pub async fn page() -> impl Responder {
    file("text/html; charset=utf-8", include_str!("console/index.html"))
}

#[get("/console.css")]
pub async fn style() -> impl Responder {
    file("text/css; charset=utf-8", include_str!("console/console.css"))
}

#[get("/console.js")]
pub async fn script() -> impl Responder {
    file("text/javascript; charset=utf-8", include_str!("console/console.js"))
}

fn file(kind: &'static str, text: &'static str) -> HttpResponse {
    HttpResponse::Ok()
        .content_type(kind)
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        // Another version of the program has another page.
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(text)
}

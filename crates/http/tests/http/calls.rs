//! Calls, health, pages, and who may do what.

use std::net::{Ipv4Addr, SocketAddr};

use raceline_control::allowance::MOST_CALLS;
use raceline_http::Parts;
use serde_json::{Value, json};

use crate::support::{READ_TOKEN, Served, TOKEN};

/// Any user, and the token as the password, in base64.
const BASIC: &str = "Authorization: Basic c3Bka2NzaTpjb3JyZWN0LWhvcnNlLWJhdHRlcnk=";

#[test]
fn readiness_begins_with_the_framework() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let served = Served::start_with(address, Parts { rpc: true, ..Parts::default() }, |_| ());
    assert_eq!(served.get("/healthz").status, 200);
    let early = served.get("/readyz");
    assert_eq!(early.status, 503);
    assert!(early.body.contains("framework_start_init"), "{}", early.body);
    served.change("framework_start_init", Value::Null);
    let ready = served.get("/readyz");
    assert_eq!((ready.status, ready.body.as_str()), (200, "ok\n"));
    assert_eq!(ready.header("cache-control"), Some("no-store"));
    // Parts that are off are not there.
    let nothing = served.get("/metrics");
    assert_eq!(nothing.status, 404);
    assert!(nothing.body.ends_with(": /rpc (POST), /healthz, /readyz.\n"), "{}", nothing.body);
    assert_eq!(served.get("/").status, 405);
}

/// Whoever opens the address of the metrics in a browser learns where they are.
#[test]
fn an_address_of_metrics_names_its_paths() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let served = Served::start_with(address, Parts { metrics: true, ..Parts::default() }, |_| ());
    let nothing = served.get("/");
    assert_eq!(nothing.status, 404);
    let wanted = "There is nothing at this path here. These paths are served: /metrics, /healthz, /readyz.\n";
    assert_eq!(nothing.body, wanted);
}

#[test]
fn calls_are_answered_as_by_spdks_proxy() {
    let served = Served::start();
    // The proxy's clients post to the root, as any user.
    let request = r#"{"jsonrpc":"2.0","method":"bdev_malloc_create","id":7,"params":{"name":"M","num_blocks":8,"block_size":512}}"#;
    let made = served.ask("POST", "/", &[BASIC, "Content-Type: application/json"], request);
    assert_eq!(made.status, 200);
    assert_eq!(made.header("content-type"), Some("application/json"));
    assert_eq!(made.body, "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"M\"}\n");
    // Old names and SPDK's texts.
    let all = served.call(&[BASIC], "get_bdevs", json!({ "name": "M" }));
    assert_eq!(all["result"][0]["block_size"], 512);
    let error = served.call(&[BASIC], "bdev_get_bdevs", json!({ "name": "none" }))["error"].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!(-19), &json!("No such device")));
    let error = served.call(&[BASIC], "bdev_nothing", Value::Null)["error"].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!(-32601), &json!("Method not found")));
    // Batches, notifications, and what is no request.
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"spdk_get_version"},{"jsonrpc":"2.0","id":2,"method":"no"}]"#;
    let answer = served.ask("POST", "/rpc", &[], batch);
    let answers: Vec<Value> = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((answers.len(), &answers[1]["id"]), (2, &json!(2)));
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "spdk_get_version" });
    let many = Value::from(vec![call; MOST_CALLS + 1]).to_string();
    let answer = served.ask("POST", "/rpc", &[], &many);
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    assert!(answer["error"]["data"].as_str().unwrap().contains("1025 calls"), "{answer}");
    let quiet = r#"{"jsonrpc":"2.0","method":"spdk_get_version"}"#;
    assert_eq!(served.ask("POST", "/rpc", &[], quiet).status, 204);
    for (broken, code) in
        [("{", -32700), ("{} {}", -32700), ("", -32700), ("[]", -32600), ("1", -32600)]
    {
        let answer = served.ask("POST", "/rpc", &["Content-Type: text/plain"], broken);
        let value: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, &value["error"]["code"]), (200, &json!(code)), "{broken}");
    }
}

#[test]
fn without_the_token_a_client_may_look() {
    let served = Served::start();
    let reader = format!("Authorization: Bearer {READ_TOKEN}");
    for headers in [&[][..], &[reader.as_str()]] {
        assert_eq!(served.call(headers, "bdev_get_bdevs", Value::Null)["result"], json!([]));
        let params = json!({ "name": "M", "num_blocks": 8, "block_size": 512 });
        let error = served.call(headers, "bdev_malloc_create", params)["error"].clone();
        assert_eq!(error["code"], -1, "{error}");
        assert!(error["data"].as_str().unwrap().contains("--http-token"), "{error}");
    }
    // A wrong token is not the same as none.
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"bdev_get_bdevs"}"#;
    let wrong = served.ask("POST", "/rpc", &["Authorization: Bearer wrong"], request);
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, Some("Bearer")));
    let wrong = served.ask("POST", "/rpc", &["Authorization: Basic dXNlcjp3cm9uZw=="], request);
    assert!(wrong.header("www-authenticate").unwrap().starts_with("Basic"), "{wrong:?}");
    assert_eq!(served.ask("POST", "/rpc", &["Authorization: Digest x"], request).status, 400);
    let metrics = served.get("/metrics").body;
    assert!(metrics.contains("raceline_http_wrong_tokens_total 3\n"), "{metrics}");
}

#[test]
fn a_client_learns_what_its_token_may_do() {
    let served = Served::start();
    let reader = format!("Authorization: Bearer {READ_TOKEN}");
    let writer = format!("Authorization: Bearer {TOKEN}");
    for (headers, role) in [
        (&[][..], "read_only"),
        (&[reader.as_str()], "read_only"),
        (&[writer.as_str()], "admin"),
        (&[BASIC], "admin"),
    ] {
        let caller = served.call(headers, "raceline_get_caller", Value::Null)["result"].clone();
        assert_eq!(caller, json!({ "via": "http", "role": role }));
    }
}

#[test]
fn other_machines_need_a_token_for_all_but_health() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let parts = Parts { rpc: true, metrics: true, page: true };
    let served = Served::start_with(everywhere, parts, |_| ());
    assert_eq!(served.get("/healthz").status, 200);
    for path in ["/metrics", "/", "/nothing"] {
        let refused = served.get(path);
        assert_eq!(refused.status, 401, "{path}");
        assert!(refused.header("www-authenticate").unwrap().starts_with("Basic"), "{refused:?}");
    }
    for token in [TOKEN, READ_TOKEN] {
        let bearer = format!("Authorization: Bearer {token}");
        assert_eq!(served.ask("GET", "/metrics", &[&bearer], "").status, 200);
        assert_eq!(served.ask("GET", "/nothing", &[&bearer], "").status, 404);
    }
}

#[test]
fn a_browser_is_no_way_in_for_other_sites() {
    let served = Served::start();
    let own = format!("Origin: http://{}", served.address);
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"bdev_get_bdevs"}"#;
    assert_eq!(served.ask("POST", "/rpc", &[&own, BASIC], request).status, 200);
    for origin in ["Origin: http://evil.example", "Origin: null"] {
        assert_eq!(served.ask("POST", "/rpc", &[origin, BASIC], request).status, 403);
    }
    let rebound = served.ask("POST", "/rpc", &["Host: evil.example", BASIC], request);
    assert_eq!(rebound.status, 421);
    assert!(rebound.body.contains("--http-name"), "{}", rebound.body);
    assert_eq!(served.ask("GET", "/healthz", &["Host: evil.example"], "").status, 421);
}

#[test]
fn a_page_is_served_with_its_policy() {
    let served = Served::start();
    let page = served.get("/");
    assert_eq!(page.status, 200);
    assert!(page.body.starts_with("<!doctype html>"));
    assert_eq!(page.header("content-security-policy"), Some("default-src 'self'"));
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(served.ask("HEAD", "/", &[], "").status, 200);
}

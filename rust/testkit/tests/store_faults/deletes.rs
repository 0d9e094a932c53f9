//! DeleteObjects: what it carries, and what is made of answers that are half an error; and answers of 200 that are errors whole.

use std::time::{Duration, SystemTime};

use alluvium_store::{ErrorKind, Payload, layer::Policies, s3::Deletes};
use aws_smithy_types::{DateTime, date_time::Format};

use crate::{
    bytes,
    front::{Act, Front, answer, error_document},
    header, key, policies, read,
};

#[tokio::test]
async fn a_delete_carries_every_checksum_that_a_server_may_ask_for() {
    let front = Front::start(policies()).await;
    let keys = [key("a"), key("b & <c>")];
    for key in &keys {
        front.store.put(key, Payload::new(bytes(10))).await.expect("a put");
    }
    front.seen();
    // The server behind checks each of them against the body.
    front.store.delete(&keys).await.expect("a delete");
    let seen = front.seen();
    let [head] = seen.as_slice() else { panic!("{seen:?}") };
    assert!(head.starts_with("POST") && head.contains("?delete"), "{head}");
    for name in ["content-md5", "x-amz-checksum-crc32", "content-length"] {
        assert!(
            header(head, name).is_some_and(|value| !value.is_empty()),
            "{name}: {head}"
        );
    }
    let hash = header(head, "x-amz-content-sha256").expect("a hash");
    assert_eq!(hash.len(), 64, "{head}");
    for key in &keys {
        let error = read(&front.store, key).await.expect_err("deleted");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

fn failed(keys: &[(&str, &str)]) -> String {
    let errors = keys.iter().map(|(key, code)| {
        format!("<Error><Key>{key}</Key><Code>{code}</Code><Message>said of {key}</Message></Error>")
    });
    let errors: String = errors.collect();
    answer("200 OK", "", &format!("<DeleteResult>{errors}</DeleteResult>"))
}

#[tokio::test]
async fn errors_of_single_keys_are_read_and_the_whole_delete_is_repeated() {
    let front = Front::start(policies()).await;
    let keys = [key("a"), key("b")];
    for code in ["InternalError", "SlowDown", "NobodyKnowsThis"] {
        for key in &keys {
            front.store.put(key, Payload::new(bytes(10))).await.expect("a put");
        }
        front.rule("POST", "?delete", 2, Act::Answer(failed(&[("b", code)])));
        let deleted = front.store.delete(&keys).await;
        deleted.unwrap_or_else(|error| panic!("{code}: {error}"));
        assert_eq!(front.count("POST"), 3, "{code}");
        for key in &keys {
            assert!(read(&front.store, key).await.is_err(), "{code}");
        }
    }
    // What cannot pass is told, with its key, and not tried again.
    for code in ["AccessDenied", "ObjectLocked"] {
        front.rule("POST", "?delete", usize::MAX, Act::Answer(failed(&[("b", code)])));
        let error = front.store.delete(&keys).await.expect_err("a refusal");
        assert_eq!(
            (error.kind(), error.is_retryable(), error.key(), error.code()),
            (ErrorKind::AccessDenied, false, Some("b"), Some(code)),
            "{error}"
        );
        assert_eq!(error.detail(), "said of b");
        assert_eq!(front.count("POST"), 1, "{code}");
    }
    // Absent is deleted, also where the server calls it an error.
    let absent = failed(&[("a", "NoSuchKey"), ("b", "NoSuchVersion")]);
    front.rule("POST", "?delete", usize::MAX, Act::Answer(absent));
    front.store.delete(&keys).await.expect("a delete");
    let both = failed(&[("a", "NoSuchKey"), ("b", "AccessDenied")]);
    front.rule("POST", "?delete", usize::MAX, Act::Answer(both));
    front.store.delete(&keys).await.expect_err("a refusal");
}

#[tokio::test]
async fn an_error_under_a_status_of_200_is_no_success() {
    let impatient = Policies {
        operation_timeout: Duration::from_millis(300),
        ..policies()
    };
    let (front, patient) = (Front::start(impatient).await, Front::start(policies()).await);
    let object = key("object");
    let put = Payload::new(bytes(10));
    let plain = error_document("InternalError");
    // What is sent to keep the connection comes before the document, or between its first line and the rest.
    let early = format!("\n \n{}", plain.trim_start_matches("<?xml version=\"1.0\"?>"));
    let between = plain.replacen("?>", "?>\n   \n", 1);
    for document in [plain, early, between] {
        for (method, contains) in [
            ("PUT", "/object"),
            ("POST", "?delete"),
            ("POST", "uploads"),
            ("GET", "list-type"),
        ] {
            let lie = || Act::Answer(answer("200 OK", "Content-Type: application/xml\r\n", &document));
            front.rule(method, contains, usize::MAX, lie());
            let outcome = match (method, contains) {
                ("PUT", _) => front.store.put(&object, put.clone()).await,
                (_, "?delete") => front.store.delete(std::slice::from_ref(&object)).await,
                (_, "uploads") => front.store.create_upload(&object).await.map(|_| ()),
                _ => front.store.list("", None, 10).await.map(|_| ()),
            };
            let error = outcome.expect_err("an error");
            assert!(error.is_retryable(), "{method} {contains} {document:?}: {error}");
        }
        let upload = patient.store.create_upload(&object).await.expect("an upload");
        let part = patient.store.upload_part(&object, &upload, 1, put.clone()).await;
        let parts = [part.expect("a part")];
        patient.rule("POST", "uploadId", 1, Act::Answer(answer("200 OK", "", &document)));
        let completed = patient
            .store
            .complete_upload(&object, &upload, &parts, put.crc32())
            .await;
        completed.unwrap_or_else(|error| panic!("{document:?}: {error}"));
        assert_eq!(patient.count("POST"), 2, "{document:?}");
    }
}

#[tokio::test]
async fn each_attempt_is_signed_anew_so_that_its_date_is_its_own() {
    let front = Front::start(policies()).await;
    let skewed = error_document("RequestTimeTooSkewed");
    let later = answer("403 Forbidden", "Retry-After: 1\r\n", &skewed);
    front.rule("PUT", "/object", 1, Act::Answer(later.clone()));
    let object = key("object");
    front.store.put(&object, Payload::new(bytes(10))).await.expect("a put");
    let seen = front.seen();
    let signed = |name: &str| -> Vec<&str> { seen.iter().filter_map(|head| header(head, name)).collect() };
    let (dates, signatures) = (signed("x-amz-date"), signed("authorization"));
    assert_eq!(dates.len(), 2);
    assert!(dates[0] < dates[1], "{dates:?}");
    assert_ne!(signatures[0], signatures[1]);

    // A clock that stays wrong is said to be that, after few attempts.
    let skewed = answer("403 Forbidden", "", &skewed);
    front.rule("PUT", "/object", usize::MAX, Act::Answer(skewed));
    let error = front.store.put(&object, Payload::new(bytes(10))).await;
    let error = error.expect_err("a wrong clock");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::ClockSkew, 4), "{error}");
}

/// An hour behind, and half a day ahead.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "what is looked at is this machine's clock")]
async fn a_store_with_another_time_is_told_its_own() {
    for ahead in [-3600, 43_200] {
        let front = Front::start(policies()).await;
        let told = DateTime::from_secs(DateTime::from(SystemTime::now()).secs() + ahead);
        let date = format!("Date: {}\r\n", told.fmt(Format::HttpDate).expect("a date"));
        let skewed = answer("403 Forbidden", &date, &error_document("RequestTimeTooSkewed"));
        front.rule("GET", "/object", 1, Act::Answer(skewed));
        front.also("GET", "/object", 2, Act::Answer(answer("200 OK", "", "ten bytes.")));
        let object = key("object");
        for _ in 0..2 {
            assert_eq!(read(&front.store, &object).await.expect("a get"), "ten bytes.");
        }
        let seen = front.seen();
        let signed: Vec<i64> = seen
            .iter()
            .filter_map(|head| signed_at(header(head, "x-amz-date")?))
            .collect();
        // Once learned, it is kept.
        let [_, learned, kept] = signed[..] else {
            panic!("{seen:?}")
        };
        for time in [learned, kept] {
            assert!((time - told.secs()).abs() <= 60, "{time} instead of {told:?}");
        }
    }
}

/// Seconds of `20261130T190718Z`.
fn signed_at(date: &str) -> Option<i64> {
    let (day, time) = date.strip_suffix('Z')?.split_once('T')?;
    let text = format!(
        "{}-{}-{}T{}:{}:{}Z",
        &day[..4],
        &day[4..6],
        &day[6..],
        &time[..2],
        &time[2..4],
        &time[4..]
    );
    DateTime::from_str(&text, Format::DateTime)
        .ok()
        .map(|moment| moment.secs())
}

#[tokio::test]
async fn a_bucket_that_keeps_what_is_deleted_is_found_out() {
    let front = Front::start(policies()).await;
    let versioning = |status: &str| {
        let status = if status.is_empty() {
            String::new()
        } else {
            format!("<Status>{status}</Status>")
        };
        answer(
            "200 OK",
            "",
            &format!("<VersioningConfiguration>{status}</VersioningConfiguration>"),
        )
    };
    // The embedded server knows nothing of versions, and says so.
    let error = front.base.deletes().await.expect_err("not implemented");
    assert!(!error.is_retryable(), "{error}");
    for (status, expected) in [
        ("", Deletes::Free),
        ("Suspended", Deletes::Free),
        ("Enabled", Deletes::LeaveVersions),
    ] {
        front.rule("GET", "?versioning", usize::MAX, Act::Answer(versioning(status)));
        assert_eq!(front.base.deletes().await.expect("an answer"), expected, "{status}");
    }
    let rule = "<Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>30</Days></DefaultRetention></Rule>";
    for (rule, expected) in [("", Deletes::LeaveVersions), (rule, Deletes::LeaveLockedVersions)] {
        let lock = format!(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{rule}</ObjectLockConfiguration>"
        );
        front.rule("GET", "?versioning", usize::MAX, Act::Answer(versioning("Enabled")));
        front.also(
            "GET",
            "?object-lock",
            usize::MAX,
            Act::Answer(answer("200 OK", "", &lock)),
        );
        assert_eq!(front.base.deletes().await.expect("an answer"), expected, "{lock}");
    }
}

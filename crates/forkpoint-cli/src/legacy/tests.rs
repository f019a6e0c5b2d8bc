use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;

const ID: &str = "0d2f7a4e-9c1b-4e8a-b6b1-3a1f5c7d9e20";
const CHILD: &str = "1d2f7a4e-9c1b-4e8a-b6b1-3a1f5c7d9e21";

fn document(id: &str) -> Value {
    json!({
        "snapshot_id": id, "container_id": "c0ffee", "container_name": "/webapp",
        "timestamp": "2025-08-15T09:50:55.123456", "trigger": "run_end", "action_context": "a click",
        "run_id": null, "status": "completed", "image_id": "sha256:abc",
        "image_tag": "cua-snapshot/webapp:manual-20250815_095055", "storage_path": null,
        "size_bytes": 8_294_400, "description": "works", "restoration_count": 2,
        "labels": {"docker.container.id": "c0ffee", "b a d": "x", "odd": 7},
        "agent_metadata": {"original_config": {"Env": ["A=1"]}}, "parent_snapshot_id": null,
    })
}

fn with(changes: &Value) -> Value {
    let mut value = document(ID);
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    value
}

fn read_one(value: &Value) -> Result<Legacy, Refusal> {
    parse(ID, value.to_string().as_bytes())
}

fn storage(files: &[(&str, String)]) -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::create_dir(directory.path().join("metadata")).unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn a_document_becomes_a_request() {
    let legacy = read_one(&document(ID)).unwrap();
    let request = legacy.request("docker", &BTreeMap::new());
    assert_eq!(request.name.as_str(), "webapp_manual-20250815_095055");
    assert_eq!(request.sandbox_name.as_ref().map(Name::as_str), Some("webapp"));
    assert_eq!((request.trigger, request.restore_count), (Trigger::RunEnd, 2));
    assert_eq!(request.created.to_string(), "2025-08-15T09:50:55.123456Z");
    assert_eq!(request.what.name, "sha256:abc");
    assert_eq!(request.what.of.as_deref(), Some("c0ffee"));
    assert_eq!(request.what.told["agent_metadata"]["original_config"]["Env"][0], "A=1");
    assert_eq!(request.labels.get(ID_LABEL), Some(ID));
    assert_eq!(request.labels.get("docker.container.id"), Some("c0ffee"));
    assert_eq!(request.labels.get("b a d"), None);
    assert_eq!(request.id, read_one(&document(ID)).unwrap().id(), "the same every time");
}

#[test]
fn what_is_wrong_with_one_is_told() {
    for (changes, why) in [
        (json!({"snapshot_id": CHILD}), "tells of"),
        (json!({"snapshot_id": 7}), "tells of"),
        (json!({"status": "creating"}), "`creating`"),
        (json!({"status": "gone"}), "status"),
        (json!({"image_id": null, "image_tag": ""}), "image"),
        (json!({"timestamp": "yesterday"}), "time"),
    ] {
        let refusal = read_one(&with(&changes)).unwrap_err();
        assert!(refusal.reason().contains(why), "{changes}: {refusal:?}");
    }
    assert!(parse(ID, b"{\"snapshot_id\": ").is_err() && parse(ID, b"[]").is_err());
    let zoned = with(&json!({"timestamp": "2025-08-15T11:50:55+02:00", "trigger": "odd"}));
    let zoned = read_one(&zoned).unwrap();
    assert_eq!(zoned.created.to_string(), "2025-08-15T09:50:55Z");
    assert_eq!(zoned.trigger, Trigger::Manual);
    let odd = read_one(&with(&json!({"image_tag": "x/y:&&", "image_id": "sha256:a"}))).unwrap();
    assert_eq!(odd.name().as_str(), "legacy-0d2f7a4e");
}

#[test]
fn a_storage_is_read_with_all_that_is_wrong_with_it() {
    let mut child = document(CHILD);
    child["parent_snapshot_id"] = json!(ID);
    child["timestamp"] = json!("2025-08-14T09:50:55");
    let lost = "2d2f7a4e-9c1b-4e8a-b6b1-3a1f5c7d9e22";
    let index = json!({"snapshots": {ID: {}, CHILD: {}, lost: {}}, "containers": {}});
    let directory = storage(&[
        (&format!("metadata/{ID}.json"), document(ID).to_string()),
        (&format!("metadata/{CHILD}.json"), child.to_string()),
        ("metadata/half.json", "{\"snapshot_id\"".to_owned()),
        ("metadata/notes.txt", "mine".to_owned()),
        ("index.json", index.to_string()),
    ]);
    fs::create_dir(directory.path().join("metadata/dir.json")).unwrap();
    let read = read(directory.path()).unwrap();
    let ids: Vec<_> = read.snapshots.iter().map(Legacy::legacy_id).collect();
    assert_eq!(ids, [ID, CHILD], "the parent first, whatever its date");
    let request = read.snapshots[1].request("docker", &read.ids());
    assert_eq!(request.parent, Some(read.snapshots[0].id()));
    let refused: Vec<_> = read.refused.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(refused, [lost, "dir", "half"]);
}

#[test]
fn an_index_that_is_being_rewritten_stops_nothing() {
    for index in ["", "{\"snapshots\": {\"a", "[]", "{\"snapshots\": 7}"] {
        let directory = storage(&[
            (&format!("metadata/{ID}.json"), document(ID).to_string()),
            ("index.json", index.to_owned()),
        ]);
        let read = read(directory.path()).unwrap();
        assert_eq!((read.snapshots.len(), read.refused.len()), (1, 0), "{index}");
    }
    let empty = TempDir::new().unwrap();
    assert_eq!(read(empty.path()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn ids_that_differ_in_a_digit_stay_apart() {
    let ids: BTreeSet<_> = (0..16)
        .flat_map(|digit| [format!("{digit:x}{}", &ID[1..]), format!("{}{digit:x}", &ID[..35])])
        .map(|id| parse(&id, document(&id).to_string().as_bytes()).unwrap().id())
        .collect();
    assert_eq!(ids.len(), 31, "one of each sixteen is the same");
}

#[test]
fn a_circle_of_parents_is_cut() {
    let one = read_one(&with(&json!({"parent_snapshot_id": CHILD}))).unwrap();
    let mut other = document(CHILD);
    other["parent_snapshot_id"] = json!(ID);
    let other = parse(CHILD, other.to_string().as_bytes()).unwrap();
    let all = in_order([(one.uuid, one.clone()), (other.uuid, other)].into());
    assert_eq!(all.len(), 2);
}

/// Documents that are nearly right: each key may hold anything.
fn nearly() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        Just(Value::from(ID)),
        Just(json!({"a": "b", "c": {"d": []}})),
        Just(json!(["x", 1])),
    ];
    let keys: Vec<String> = document(ID).as_object().unwrap().keys().cloned().collect();
    prop::collection::vec((prop::sample::select(keys), leaf), 0..6).prop_map(|changes| {
        let mut value = document(ID);
        for (key, change) in changes {
            value[key] = change;
        }
        value
    })
}

proptest! {
    #[test]
    fn whatever_a_document_holds_there_is_an_answer(value in nearly()) {
        if let Ok(legacy) = read_one(&value) {
            let request = legacy.request("docker", &BTreeMap::new());
            prop_assert_eq!(legacy.legacy_id(), ID);
            prop_assert!(!request.what.name.is_empty());
            prop_assert_eq!(request.labels.get(ID_LABEL), Some(ID));
        }
    }

    #[test]
    fn bytes_cut_anywhere_or_bent_are_no_reason_to_fall(
        cut in 0_usize..900, place in 0_usize..900, byte in any::<u8>()
    ) {
        let mut bytes = document(ID).to_string().into_bytes();
        bytes.truncate(cut);
        if let Some(bent) = bytes.get_mut(place) {
            *bent = byte;
        }
        let _ = parse(ID, &bytes);
    }

    #[test]
    fn ids_are_read_as_they_are_written(number in any::<u128>(), text in ".{0,40}") {
        prop_assert_eq!(uuid(&shown(number)), Some(number));
        if let Some(number) = uuid(&text) {
            prop_assert_eq!(shown(number), text);
        }
    }
}

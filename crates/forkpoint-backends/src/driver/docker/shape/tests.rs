use super::*;

fn web() -> Container {
    Container(json!({
        "Id": "0123456789abcdef",
        "Name": "/web",
        "Config": {
            "Hostname": "0123456789ab",
            "Env": ["A=1", "PATH=/bin"],
            "Labels": { "theirs": "x", "forkpoint.snapshot": "snp", "forkpoint.sandbox": "sbx" },
            "Unknown": 7,
        },
        "HostConfig": {
            "NetworkMode": "front",
            "PortBindings": { "80/tcp": [{ "HostIp": "", "HostPort": "8080" }],
                              "81/tcp": [{ "HostIp": "127.0.0.1", "HostPort": "" }] },
            "Memory": 1000,
            "CpuQuota": 50000, "CpuPeriod": 100_000,
        },
        "NetworkSettings": {
            "Ports": { "80/tcp": [{ "HostIp": "0.0.0.0", "HostPort": "8080" }],
                       "81/tcp": [{ "HostIp": "127.0.0.1", "HostPort": "49153" }] },
            "Networks": {
                "front": { "Aliases": ["www", "0123456789ab"], "IPAMConfig": { "IPv4Address": "10.1.1.9" } },
                "back": { "Aliases": ["db"], "IPAMConfig": null },
            },
        },
    }))
}

fn spec() -> SandboxSpec {
    SandboxSpec::new("image".parse().unwrap())
}

#[test]
fn a_copy_keeps_what_it_is_and_not_who_it_is() {
    let shape = like(&web(), &spec(), Purpose::Copy);
    assert_eq!(shape.body["Unknown"], 7, "also what nobody knows");
    assert_eq!(shape.body["Hostname"], Value::Null);
    assert_eq!(shape.body["Labels"], json!({ "theirs": "x" }));
    let endpoints = shape.endpoints();
    assert_eq!(endpoints[0].0, "front");
    assert_eq!(endpoints[0].1["Aliases"], json!(["www"]));
    assert_eq!(endpoints[1].1["Aliases"], json!(["db"]));
    assert_eq!(shape.networks.len(), 1);
}

#[test]
fn in_place_the_host_name_and_the_ports_stay() {
    let mut shape = like(&web(), &spec(), Purpose::InPlace);
    shape.keep_ports(&web());
    assert_eq!(shape.body["Hostname"], "0123456789ab");
    assert_eq!(shape.body["Labels"][label::HOSTNAME], "0123456789ab");
    let ports: Vec<u16> = shape.host_ports().into_iter().map(|(_, _, port)| port).collect();
    assert_eq!(ports, [8080, 49153]);
    shape.free_ports(|_, _, port| port == 8080);
    assert_eq!(shape.host_ports(), [("81/tcp".into(), "127.0.0.1".into(), 49153)]);
}

#[test]
fn what_is_asked_for_comes_first() {
    let mut asked = spec();
    asked.env.insert("A".into(), "2".into());
    asked.env.insert("B".into(), "3".into());
    asked.attachments.publish = vec!["9:90/udp".parse().unwrap()];
    asked.attachments.networks = false;
    asked.resources.cpu_millis = Some(500);
    let shape = like(&web(), &asked, Purpose::Copy);
    assert_eq!(shape.body["Env"], json!(["A=2", "PATH=/bin", "B=3"]));
    assert_eq!(shape.host_ports(), [("90/udp".into(), String::new(), 9)]);
    assert_eq!(shape.body["HostConfig"]["CpuQuota"], 50000, "said in its own way");
    assert!(shape.endpoints().is_empty());
    asked.resources.cpu_millis = Some(2000);
    let shape = like(&web(), &asked, Purpose::Copy);
    assert_eq!(shape.body["HostConfig"]["NanoCpus"], 2_000_000_000_u64);
    assert_eq!(shape.body["HostConfig"]["CpuQuota"], Value::Null);
}

#[test]
fn who_lives_in_the_network_of_another_has_no_names_there() {
    let mut inspect = web();
    inspect.0["HostConfig"]["NetworkMode"] = json!("container:77");
    let shape = like(&inspect, &spec(), Purpose::InPlace);
    assert_eq!(shape.body["Hostname"], Value::Null);
    assert_eq!(shape.body["HostConfig"]["NetworkMode"], "container:77");
    assert!(shape.endpoints().is_empty() && shape.host_ports().is_empty());
}

#[test]
fn a_new_one_waits_for_commands() {
    let mut asked = spec();
    let shape = fresh(&asked, true).unwrap();
    assert_eq!(shape.body["HostConfig"]["NetworkMode"], "none");
    assert_eq!(shape.body["Entrypoint"][0], "/bin/sh");
    assert_eq!(fresh(&asked, false).unwrap().body["Entrypoint"], Value::Null);
    asked.attachments.publish = vec!["80".parse().unwrap()];
    assert_eq!(fresh(&asked, true).unwrap().body["HostConfig"]["NetworkMode"], "bridge");
}

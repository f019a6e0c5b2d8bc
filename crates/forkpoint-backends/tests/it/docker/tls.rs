//! An engine that is spoken to with TLS, and that wants to know who asks.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use forkpoint_backends::driver::docker::{DockerConfig, DockerDriver, Endpoint};
use forkpoint_core::driver::{Driver as _, DriverError};
use forkpoint_testkit::docker::DockerEngine;

use super::{
    runtime,
    scene::{new_id, shell, told},
    spec,
};

fn openssl(directory: &Path, args: &str) {
    let mut command = Command::new("openssl");
    command.args(args.split(' ')).current_dir(directory);
    let output = command.stdin(Stdio::null()).output().expect("`openssl` starts");
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, an engine and somebody who asks, as the docker command has them.
fn certificates(directory: &Path) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        directory,
        &format!("req -x509 {key} -keyout ca-key.pem -out ca.pem -subj /CN=ca -days 2"),
    );
    for (name, extension) in [
        ("server", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth"),
        ("client", "extendedKeyUsage=clientAuth"),
    ] {
        std::fs::write(directory.join(format!("{name}.ext")), extension).unwrap();
        openssl(
            directory,
            &format!("req {key} -keyout {name}-key.pem -out {name}.csr -subj /CN={name}"),
        );
        openssl(
            directory,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
                 -out {name}.pem -days 2 -extfile {name}.ext"
            ),
        );
    }
    let own = directory.join("own");
    std::fs::create_dir(&own).unwrap();
    for (from, to) in
        [("ca.pem", "ca.pem"), ("client.pem", "cert.pem"), ("client-key.pem", "key.pem")]
    {
        std::fs::copy(directory.join(from), own.join(to)).unwrap();
    }
    own
}

/// As the environment of the docker command says it.
fn driver(directory: &Path, host: &str, certificates: Option<&Path>) -> DockerDriver {
    let endpoint = Endpoint::find(|name| match name {
        "DOCKER_HOST" => Some(host.to_owned()),
        "DOCKER_TLS_VERIFY" => certificates.map(|_| "1".to_owned()),
        "DOCKER_CERT_PATH" => certificates.map(|path| path.display().to_string()),
        _ => None,
    });
    DockerDriver::open(DockerConfig::new(endpoint.unwrap(), directory.join("docker"))).unwrap()
}

#[test]
fn an_engine_with_certificates_is_spoken_to_and_others_are_refused() {
    let directory = tempfile::TempDir::new().unwrap();
    let own = certificates(&directory.path().join("certificates"));
    let at = directory.path().join("engine");
    std::fs::create_dir(&at).unwrap();
    let engine = DockerEngine::own_with_tls(&at, &directory.path().join("certificates"));
    // The engine has a network of its own: the way to it is a socket that leads to its port.
    let port = engine.tls_port();
    let host = format!("tcp://localhost:{port}");
    runtime().block_on(async {
        let good = driver(directory.path(), &host, Some(&own));
        let sandbox =
            good.create(new_id(), &spec()).await.unwrap_or_else(|err| panic!("{}", told(&err)));
        assert_eq!(shell(sandbox.as_ref(), "echo through").await, "through\n");
        let sealed = super::scene::try_seal(
            sandbox.as_ref(),
            forkpoint_core::id::SnapshotId::from_u128(super::unique()),
        )
        .await;
        let sealed = sealed.unwrap_or_else(|err| panic!("{}", told(&err)));
        good.rollback(sandbox.id(), &spec(), &sealed).await.unwrap();
        good.destroy(sandbox.id()).await.unwrap();
        good.unseal(sealed.snapshot).await.unwrap();

        // Another authority's engine, nobody's word, and no TLS at all.
        let other = certificates(&directory.path().join("others"));
        let nobody = directory.path().join("nobody");
        std::fs::create_dir(&nobody).unwrap();
        std::fs::copy(own.join("ca.pem"), nobody.join("ca.pem")).unwrap();
        for (certificates, says) in
            [(Some(other.as_path()), "certificate"), (Some(nobody.as_path()), ""), (None, "")]
        {
            let refused = driver(directory.path(), &host, certificates).list().await.unwrap_err();
            assert!(
                matches!(refused, DriverError::Unreachable { .. } | DriverError::Failed { .. }),
                "{refused:?}"
            );
            assert!(told(&refused).contains(says), "{}", told(&refused));
        }
    });
}

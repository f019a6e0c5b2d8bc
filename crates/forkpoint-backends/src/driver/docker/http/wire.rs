//! A connection to an engine: a socket of this machine, or TCP, with TLS or without.

use std::{
    fs, io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::super::endpoint::{Endpoint, TlsFiles};

#[derive(Debug)]
pub(in super::super) enum Wire {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    pub(super) async fn open(endpoint: &Endpoint, tls: Option<&Tls>) -> io::Result<Self> {
        let connect = async |host: &str, port: u16| TcpStream::connect((host, port)).await;
        match endpoint {
            Endpoint::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
            Endpoint::Tcp { host, port } => Ok(Self::Tcp(connect(host, *port).await?)),
            Endpoint::Tls { host, port, .. } => {
                let config = tls.ok_or(io::ErrorKind::Unsupported)?.config()?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = connect(host, *port).await?;
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                Ok(Self::Tls(Box::new(stream)))
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What was read of certificates, once.
#[derive(Debug)]
pub(in super::super) struct Tls {
    files: TlsFiles,
    config: std::sync::OnceLock<Arc<ClientConfig>>,
}

impl Tls {
    pub(super) fn of(endpoint: &Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::Tls { files, .. } => {
                Some(Self { files: files.clone(), config: Default::default() })
            }
            _ => None,
        }
    }

    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(configure(&self.files)?);
        Ok(Arc::clone(self.config.get_or_init(|| config)))
    }
}

fn configure(files: &TlsFiles) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match files.verify {
        true => builder.with_root_certificates(roots(files)?),
        false => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
    };
    let (cert, key) = (files.directory.join("cert.pem"), files.directory.join("key.pem"));
    if !cert.exists() {
        return Ok(builder.with_no_client_auth());
    }
    let key = PrivateKeyDer::from_pem_file(&key).map_err(|err| at(&key, err))?;
    builder.with_client_auth_cert(certificates(&cert)?, key).map_err(io::Error::other)
}

fn roots(files: &TlsFiles) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.directory.join("ca.pem"))? {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = fs::read(path).map_err(|err| at(path, err))?;
    CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|err| at(path, err))
}

fn at(path: &Path, err: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("failed to read `{}`: {err}", path.display()))
}

/// For an engine whose context says that its certificate is not to be checked.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

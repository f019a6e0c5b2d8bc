use tokio::{io::AsyncWriteExt as _, net::UnixListener};

use super::*;

/// Asks somebody who answers `answer`, whatever was asked.
fn ask(answer: &'static [u8], upgrade: bool) -> HttpResult<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let serve = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = BytesMut::new();
            while find_end(&asked).is_none() {
                stream.read_buf(&mut asked).await.unwrap();
            }
            stream.write_all(answer).await.unwrap();
        });
        let client = Client::new(Endpoint::Unix(path));
        let request = Request { upgrade, ..Request::new("GET", "/x") };
        let answer = client.send(request).await?;
        let all = answer.body.all().await.map_err(HttpError::Source)?;
        serve.await.unwrap();
        Ok(all)
    })
}

#[test]
fn bodies_of_every_form_are_read_to_their_end() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcdefgh",
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
    ] {
        assert_eq!(ask(answer, false).unwrap(), b"abcde");
    }
    let upgraded = ask(b"HTTP/1.1 101 UPGRADED\r\nContent-Length: 2\r\n\r\nabcde", true).unwrap();
    assert_eq!(upgraded, b"abcde");
    assert_eq!(ask(b"HTTP/1.1 204 No\r\nContent-Length: 9\r\n\r\n", false).unwrap(), b"");
}

#[test]
fn what_is_cut_short_or_odd_is_an_error() {
    for answer in [
        &b""[..],
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n",
    ] {
        assert!(ask(answer, false).is_err(), "{}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn what_an_engine_says_no_with_is_told() {
    let answer =
        b"HTTP/1.1 409 Conflict\r\nContent-Length: 25\r\n\r\n{\"message\":\"it is taken\"}";
    let err = ask(answer, false).unwrap_err();
    assert_eq!((err.status(), err.to_string().as_str()), (Some(409), "it is taken"));
    let err = ask(b"HTTP/1.1 500 Oh\r\n\r\n", false).unwrap_err();
    assert_eq!(err.to_string(), "the engine answers 500");
}

#[test]
fn a_socket_that_is_not_there_is_told_with_the_way_out() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Endpoint::Unix("/nowhere/docker.sock".into()));
    let err = runtime.block_on(client.send(Request::new("GET", "/_ping"))).unwrap_err();
    assert!(err.to_string().contains("`unix:///nowhere/docker.sock`"), "{err}");
    assert!(err.to_string().contains("DOCKER_HOST"), "{err}");
}

//! Sockets that listen, and pairs.

use crate::place::{Place, until};

const SERVER: &str = "
import socket, selectors, os
tcp = socket.create_server(('127.0.0.1', 8080), backlog=7)
tcp.setblocking(False)
unix = socket.socket(socket.AF_UNIX); unix.bind('/mnt/server'); unix.listen(); unix.setblocking(False)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 9090)); udp.setblocking(False)
a, b = socket.socketpair()
a.sendall(b'on its way')
selector = selectors.DefaultSelector()
for s in (tcp, unix, udp): selector.register(s, selectors.EVENT_READ)
open('/mnt/ready', 'w').write('1')
served = 0
while True:
    for key, _ in selector.select():
        s = key.fileobj
        if s is udp:
            data, peer = udp.recvfrom(100)
            udp.sendto(b'udp ' + data, peer)
            continue
        connection, _ = s.accept()
        served += 1
        if s is unix:
            connection.sendall(b'unix ' + b.recv(100) + b' ' + a.getsockname().__repr__().encode())
            a.sendall(b'again')
        else:
            connection.sendall(f'tcp {served} {os.getpid()}'.encode())
        connection.close()
";

/// Asks from inside.
const CLIENT: &str = "
import socket, sys
kind = sys.argv[1]
if kind == 'udp':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30); s.sendto(b'hello', ('127.0.0.1', 9090))
    print(s.recv(100).decode())
else:
    s = socket.create_connection(('127.0.0.1', 8080)) if kind == 'tcp' else socket.socket(socket.AF_UNIX)
    if kind == 'unix': s.connect('/mnt/server')
    data = b''
    while True:
        part = s.recv(100)
        if not part: break
        data += part
    print(data.decode())
";

#[test]
fn a_server_still_answers() {
    let mut place = Place::new();
    let sandbox = place.python(SERVER);
    until("it listens", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let ask =
        |sandbox, kind: &str| place.inside(sandbox, &["/usr/bin/python3", "-c", CLIENT, kind]);
    assert_eq!(ask(&sandbox, "tcp"), "tcp 1 2");
    let images = {
        let captured = crate::place::try_capture(&sandbox).unwrap();
        assert_eq!(ask(&sandbox, "tcp"), "tcp 2 2", "the original goes on");
        captured
    };
    drop(sandbox);
    place.write(&images);
    let copy = place.restore();
    let ask = |kind: &str| place.inside(&copy, &["/usr/bin/python3", "-c", CLIENT, kind]);
    assert_eq!(ask("tcp"), "tcp 2 2");
    assert_eq!(ask("unix"), "unix on its way ''");
    assert_eq!(ask("unix"), "unix again ''");
    assert_eq!(ask("udp"), "udp hello");
}

//! Which user has opened the other side of a TCP connection on loopback, by the kernel's table of
//! sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a connection that both sides have open.
const ESTABLISHED: &str = "01";

/// Returns the user of the process at `theirs`, which is connected with `mine`; `None` when the
/// kernel has no such socket.
///
/// # Errors
/// Returns the errors of the file system.
pub(crate) fn user_of(theirs: SocketAddr, mine: SocketAddr) -> io::Result<Option<u32>> {
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = match std::fs::read_to_string(table) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        let found = text.lines().skip(1).find_map(|line| user_in(line, plain(theirs), plain(mine)));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Returns the user of a line of the table, if it is of the socket at `here` that is connected with
/// `there`.
fn user_in(line: &str, here: SocketAddr, there: SocketAddr) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
    let is_it = state == ESTABLISHED && address(local)? == here && address(remote)? == there;
    // Behind these: queues, timer, retransmissions.
    if is_it { words.nth(3)?.parse().ok() } else { None }
}

/// Reads an address as the kernel writes it: in hexadecimal, by words in the byte order of the
/// machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            bytes.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word));
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some(plain(SocketAddr::new(ip, port)))
}

/// Returns an address of IPv4 as such, also where a socket of IPv6 has it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_connection_is_found_and_that_of_no_connection_is_not() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(loopback) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (served, _) = listener.accept().unwrap();
            let (theirs, mine) = (served.peer_addr().unwrap(), served.local_addr().unwrap());
            assert_eq!(user_of(theirs, mine).unwrap(), Some(nix::unistd::geteuid().as_raw()));
            let nobody = SocketAddr::new(theirs.ip(), 1);
            assert_eq!(user_of(nobody, mine).unwrap(), None);
            drop(client);
        }
    }

    #[test]
    fn an_address_of_ipv4_is_the_same_in_a_socket_of_ipv6() {
        let mapped = "0000000000000000FFFF00000100007F:C350";
        if cfg!(target_endian = "little") {
            assert_eq!(address(mapped), Some("127.0.0.1:50000".parse().unwrap()));
            assert_eq!(address("0100007F:C350"), address(mapped));
        }
        assert_eq!(address("0100007F"), None);
        assert_eq!(address("01:0"), None);
    }
}

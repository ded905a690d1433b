//! Somebody who listens on the line.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

/// Passes everything on, and keeps what it heard, in both directions. Serves
/// until the process ends.
pub struct Tap {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// In front of a server at this port of 127.0.0.1.
    pub fn before(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let copies = (client.try_clone(), server.try_clone());
                let (Ok(from_client), Ok(from_server)) = copies else { continue };
                let ears = (Arc::clone(&ear), Arc::clone(&ear));
                spawn(move || pass(from_client, server, &ears.0));
                spawn(move || pass(from_server, client, &ears.1));
            }
        });
        Self { port, heard }
    }

    /// The port that it listens at.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it heard so far.
    pub fn heard(&self) -> Vec<u8> {
        self.heard.lock().expect("no panic").clone()
    }
}

/// Ends with the connection.
fn pass(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        heard.lock().expect("no panic").extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

//! A key-value cache. A GET is one RDMA Read, which needs no code of the server. A PUT is a message. An
//! atomic counts the clients. The environment variable `WIRE` names the wire of the server and its clients.
//! The default is `local`, a wire between processes of one user.
//!
//!     cargo run -p iwarp-tokio --example cache -- server         # prints its address
//!     cargo run -p iwarp-tokio --example cache -- 100.64.12.34   # that address
use std::hash::{DefaultHasher, Hash, Hasher};

use iwarp::memory::Access;
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, Error, Listener, RemoteRegion, Result};

const PORT: u16 = 7471;
const SLOTS: u64 = 1 << 16;
/// Size of a slot in bytes: a checksum (8), the key (24) and the value (96), both padded with zeros.
const SLOT: u64 = 128;

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Returns the offset of a key's slot. The slots follow the counter of clients.
fn place(key: &[u8]) -> u64 {
    8 + hash(key) % SLOTS * SLOT
}

fn slot(key: &str, value: &str) -> Vec<u8> {
    let bytes = format!("{key:\0<24.24}{value:\0<96.96}").into_bytes();
    [&hash(&bytes).to_be_bytes()[..], &bytes].concat()
}

async fn server(endpoint: Endpoint) -> Result<()> {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let table = endpoint.register((8 + SLOTS * SLOT) as usize, rights)?;
    let options = ConnectionOptions::default().private_data(&table.remote().to_bytes())?;
    let listener = Listener::bind(&endpoint, PORT)?;
    println!("a cache at {}", endpoint.addresses()[0]);
    loop {
        let Ok(client) = listener.request().await?.accept(&options).await else { continue };
        let table = table.clone();
        tokio::spawn(async move {
            while let Ok(put) = client.recv().await {
                let Some(key) = put.data.get(8..32).filter(|_| put.data.len() == SLOT as usize) else {
                    break;
                };
                table.write_at(place(key) as usize, &put.data)?;
                client.send(b"stored").await?;
            }
            Ok::<(), Error>(())
        });
    }
}

async fn get(server: &Connection, table: &RemoteRegion, key: &str) -> Result<Option<String>> {
    let place = place(&slot(key, "")[8..32]);
    let read = server.read_bytes(&table.slice(place..place + SLOT)?).await?;
    // A Read that runs at the same time as a PUT may see only a part of the PUT. Then the checksum is wrong.
    let is_whole = read[..8] == hash(&read[8..]).to_be_bytes() && read[8..32] == slot(key, "")[8..32];
    Ok(is_whole.then(|| String::from_utf8_lossy(&read[32..]).trim_end_matches('\0').to_owned()))
}

async fn client(endpoint: Endpoint, address: &str) -> Result<()> {
    let server = Connection::connect(&endpoint, (address, PORT)).await?;
    let table = RemoteRegion::try_from(server.private_data())?;
    println!("client {}", server.fetch_add(&table, 1).await? + 1);
    server.send(&slot("colour", "blue")).await?;
    server.recv().await?;
    println!(
        "colour {:?}, shape {:?}",
        get(&server, &table, "colour").await?,
        get(&server, &table, "shape").await?
    );
    while get(&server, &table, "colour").await?.is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let wire = std::env::var("WIRE").unwrap_or("local".into());
    let endpoint = Endpoint::open(&wire).await.map_err(|error| error.to_string())?;
    let ended = match std::env::args().nth(1).as_deref() {
        Some("server") => server(endpoint).await,
        Some(address) => client(endpoint, address).await,
        None => Err(Error::Name("say `server`, or the address of a server".into())),
    };
    ended.map_err(|error| error.to_string())
}

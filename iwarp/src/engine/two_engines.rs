//! Two engines on an in-memory wire with one connection between them, for tests that need the private state
//! of an engine, such as the tests of the invariant checks.

use dp::link::{LinkConfig, pair};
use tcp_lite::Instant;

use super::{Engine, EngineConfig};
use crate::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, ListenOptions,
    ProtectionDomain, QpInit, QueuePair, ResponderOptions, StreamOptions,
};

const PORT: u16 = 7174;

/// One peer: an engine, its context and the objects of its user.
pub(super) struct End {
    pub(super) engine: Engine,
    context: Context,
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    id: Option<CmId>,
    qp: Option<QueuePair>,
}

/// The stage of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has sent its SYN.
    Opening,
    /// The server's user has the Request, and the client waits for the Reply.
    Deciding,
    /// Both peers are in streaming mode.
    Streaming,
    /// As `Streaming`, and the server waits for the Request.
    AwaitRequest,
    /// The server's user has accepted, and the server waits for the RTR.
    AwaitRtr,
    /// The connection is established at both peers.
    Established,
    /// As `Established`, with InfiniBand's semantics.
    Agreed,
    /// As `Established`, and the client has sent its FIN.
    Ended,
}

impl End {
    fn new(number: u8, port: Box<dyn dp::Port>) -> Self {
        let context = Context::new(ContextConfig { seed: Some([number; 32]), ..Default::default() }).unwrap();
        let mut config = EngineConfig::new(&*port, &[&format!("10.0.0.{number}/24")]).unwrap();
        config.stack.seed = [number; 32];
        config.stack.address_probing = tcp_lite::AddressProbing::Off;
        Self {
            engine: Engine::new(&context, port, config).unwrap(),
            channel: context.create_event_channel().unwrap(),
            pd: context.alloc_pd().unwrap(),
            cq: context.create_cq(64, None).unwrap(),
            context,
            id: None,
            qp: None,
        }
    }

    fn make_id(&mut self) -> CmId {
        let id = self.context.create_id(&self.channel);
        self.id = Some(id.clone());
        id
    }

    fn make_qp(&mut self) -> &QueuePair {
        self.qp.insert(self.pd.create_qp(&QpInit::new(&self.cq)).unwrap())
    }
}

/// Returns the client and the server of a connection at this stage.
pub(super) fn connection_at(stage: Stage) -> [End; 2] {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let mut ends = [End::new(1, port_a), End::new(2, port_b)];
    let is_plain = matches!(stage, Stage::Streaming | Stage::AwaitRequest);
    let streaming = is_plain.then(StreamOptions::default);
    let [client, server] = &mut ends;
    server.make_id().listen_with(&ListenOptions { streaming, ..ListenOptions::new(PORT) }).unwrap();
    let mut now_us = 0;
    server.engine.poll_at(Instant::from_micros(now_us));
    let remote = format!("10.0.0.2:{PORT}").parse().unwrap();
    let param = ConnParam { fallback: true, ib_semantics: stage == Stage::Agreed, ..ConnParam::default() };
    match streaming {
        Some(options) => client.make_id().connect_stream(remote, options, &param).unwrap(),
        None => {
            let id = client.make_id();
            id.connect(client.make_qp(), remote, &param).unwrap();
        }
    }
    if stage == Stage::Opening {
        client.engine.poll_at(Instant::from_micros(now_us));
        return ends;
    }
    loop {
        now_us += 1;
        assert!(now_us < 10_000, "{stage:?} does not come");
        for end in &mut ends {
            end.engine.poll_at(Instant::from_micros(now_us));
        }
        let [client, server] = &mut ends;
        let (at_client, at_server) = (client.channel.poll(), server.channel.poll());
        match at_server.as_ref().map(|event| &event.kind) {
            Some(CmEventKind::ConnectRequest { .. }) => {
                server.id = at_server.map(|event| event.id);
                if stage == Stage::Deciding {
                    return ends;
                }
                let id = server.id.clone().unwrap();
                id.accept(server.make_qp(), &param).unwrap();
                if stage == Stage::AwaitRtr {
                    server.engine.poll_at(Instant::from_micros(now_us));
                    return ends;
                }
            }
            Some(CmEventKind::StreamEstablished { .. }) => {
                server.id = at_server.map(|event| event.id);
                if stage == Stage::AwaitRequest {
                    let id = server.id.as_ref().unwrap();
                    id.start_responder(b"", &ResponderOptions::default()).unwrap();
                    server.engine.poll_at(Instant::from_micros(now_us));
                }
                return ends;
            }
            Some(CmEventKind::Established { .. }) => {
                if stage == Stage::Ended {
                    client.id.as_ref().unwrap().disconnect();
                    client.engine.poll_at(Instant::from_micros(now_us));
                }
                return ends;
            }
            other => assert!(other.is_none(), "{other:?}"),
        }
        drop(at_client);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::verbs::{QpState, RecvRequest, SendOp, SendRequest, WcStatus};

    /// The server accepts a Send although its last limit allowed no more messages. The server delays the new
    /// limit, since an answer of its user could carry the limit. Then the server's user closes the connection
    /// without an answer. The client's Send succeeds.
    #[test]
    fn a_limit_that_is_owed_is_told_before_a_close() {
        let [mut client, mut server] = connection_at(Stage::Agreed);
        let mut now_us = 20_000;
        let mut poll = |end: &mut End| {
            now_us += 1;
            end.engine.poll_at(Instant::from_micros(now_us));
        };
        for _ in 0..100 {
            poll(&mut client);
            poll(&mut server);
        }
        server.engine.await_answers(Duration::from_secs(1));
        let (at_client, at_server) = (client.qp.clone().unwrap(), server.qp.clone().unwrap());
        at_server.post_recv(&RecvRequest { wr_id: 7, sg_list: Default::default() }).unwrap();
        at_client.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        poll(&mut client);
        poll(&mut server);
        assert!(server.cq.poll_one().is_some_and(|wc| (wc.wr_id, wc.status) == (7, WcStatus::Success)));
        for _ in 0..10 {
            poll(&mut server);
            poll(&mut client);
        }
        assert!(client.cq.poll_one().is_none(), "the answer of the user would tell it");
        at_server.modify(QpState::Closing).unwrap();
        let wc = (0..100).find_map(|_| {
            poll(&mut server);
            poll(&mut client);
            client.cq.poll_one()
        });
        assert_eq!(wc.map(|wc| (wc.wr_id, wc.status)), Some((1, WcStatus::Success)));
    }
}

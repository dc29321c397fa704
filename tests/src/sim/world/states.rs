//! TCP's states and transitions (RFC 9293 figure 5 and section 3.10), by the causes of the transitions.

use tcp_lite::State;

/// The cause of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The stack has received one segment.
    Segment,
    /// Time has passed.
    Timer,
    /// The user has called a function of the stack.
    User,
    /// The stack has sent segments.
    Transmission,
}

/// Transitions that one segment can cause. The segment may acknowledge a FIN and contain the peer's FIN; a
/// RST ends a connection.
const BY_SEGMENT: [(State, &[State]); 10] = {
    use State::*;
    [
        (SynSent, &[Established, SynReceived, Closed]),
        (SynReceived, &[Established, CloseWait, Closed]),
        (Established, &[CloseWait, Closed]),
        (FinWait1, &[FinWait2, Closing, TimeWait, Closed]),
        (FinWait2, &[TimeWait, Closed]),
        (CloseWait, &[Closed]),
        (Closing, &[TimeWait, Closed]),
        (LastAck, &[Closed]),
        (TimeWait, &[Closed]),
        (Closed, &[]),
    ]
};

/// Transitions that a CLOSE of the user causes. An ABORT ends a connection in any state.
const BY_CLOSE: [(State, State); 3] = {
    use State::*;
    [(SynReceived, FinWait1), (Established, FinWait1), (CloseWait, LastAck)]
};

impl Cause {
    /// Whether this cause can lead from state `from` to state `to`.
    pub(super) fn leads(self, from: State, to: State) -> bool {
        let ends = from != State::Closed && to == State::Closed;
        match self {
            Self::Segment => BY_SEGMENT.iter().any(|(state, next)| *state == from && next.contains(&to)),
            Self::Timer => ends,
            Self::User => ends || BY_CLOSE.contains(&(from, to)),
            Self::Transmission => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_back() {
        for (state, next) in BY_SEGMENT {
            for cause in [Cause::Segment, Cause::Timer, Cause::User, Cause::Transmission] {
                assert!(!cause.leads(State::Closed, state), "{state:?}");
                assert!(next.iter().all(|next| !cause.leads(*next, state)), "{state:?}");
            }
        }
        assert!(Cause::User.leads(State::CloseWait, State::LastAck));
        assert!(!Cause::Segment.leads(State::CloseWait, State::LastAck));
    }
}

//! rping's options.

/// Options of `ping` and `pong`, with rping's letters.
#[derive(Clone, Debug, clap::Args)]
pub struct PingArgs {
    /// Number of rounds. 0 means: until interrupted.
    #[arg(short = 'C', long, default_value_t = 0, hide_default_value = true)]
    pub count: u32,
    /// Bytes of the data of a round. The range is rping's range.
    #[arg(short = 'S', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..=65535))]
    pub size: u32,
    /// Check that the data comes back unchanged.
    #[arg(short = 'V', long)]
    pub validate: bool,
    /// Print the data of each round.
    #[arg(short, long)]
    pub verbose: bool,
}

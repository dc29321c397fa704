//! Opens the vhost-user socket that the options name.

use std::path::Path;

use dp::Port;
use dp::vhost::VhostConfig;

use crate::cli::NetArgs;
use crate::errors::Error;

pub(super) fn open(args: &NetArgs, path: &Path) -> Result<Box<dyn Port>, Error> {
    let usual = VhostConfig::new(path);
    let config = VhostConfig { mtu: args.mtu.unwrap_or(usual.mtu), ..usual };
    Ok(Box::new(dp::vhost::open(&config).map_err(|error| Error::Port(error.to_string()))?))
}

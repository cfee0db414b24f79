use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Digest;
use crate::manifest::{App, Item, Manifest, Scope, Selection};
use crate::seal::PublicKey;

/// What would move, where to, and how: all that a person agrees to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The app.
    pub app: App,
    /// How much of it the manifest covered.
    pub scope: Scope,
    /// The profile's name at the source.
    pub profile: String,
    /// The digest of the manifest that was shown.
    pub manifest: Digest,
    /// The items that were chosen.
    pub items: Vec<Item>,
    /// Only what belongs to these hosts; `None` is every site.
    pub sites: Option<Vec<String>>,
    /// What will not survive, and what a person should know.
    pub notes: Vec<String>,
    /// Where to.
    pub destination: Destination,
    /// How it is put in place there.
    pub how: How,
}

/// A Space that something goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// Its address, without a token.
    pub url: String,
    /// Its name for people, as it gives it.
    pub name: String,
    /// The key that only it has the other half of.
    pub key: PublicKey,
}

/// How an import is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct How {
    /// Put it in place of the profile that is there, which is kept aside.
    pub replace_existing: bool,
    /// Close the app there when it runs.
    pub close_running_app: bool,
    /// Start the app afterwards.
    pub launch_after: bool,
    /// Take it back at this time, in milliseconds since 1970; 0 is never.
    pub expires_at_ms: u64,
}

impl Terms {
    /// Writes down what was chosen of a manifest, for one destination.
    pub fn new(
        manifest: &Manifest,
        selection: &Selection,
        destination: Destination,
        how: How,
    ) -> Self {
        Self {
            app: manifest.app,
            scope: manifest.scope,
            profile: manifest.profile.clone(),
            manifest: manifest.digest(),
            items: selection.items().to_vec(),
            sites: selection.sites().map(<[String]>::to_vec),
            notes: manifest.notes.clone(),
            destination,
            how,
        }
    }

    /// What a yes holds for. Sizes are left out: a running app changes them all the time. So is the
    /// time at which an import is taken back, which counts from when it is asked for.
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        field(b"spaceport terms 1");
        field(self.app.as_str().as_bytes());
        field(self.scope.as_str().as_bytes());
        field(self.profile.as_bytes());
        field(&self.manifest.0);
        field(&(self.items.len() as u64).to_be_bytes());
        for item in &self.items {
            field(item.relative_path.as_bytes());
            field(&[u8::from(item.is_sensitive)]);
        }
        match &self.sites {
            None => field(b"every site"),
            Some(sites) => {
                field(&(sites.len() as u64).to_be_bytes());
                sites.iter().for_each(|site| field(site.as_bytes()));
            }
        }
        field(self.destination.url.as_bytes());
        field(self.destination.key.as_bytes());
        let How { replace_existing, close_running_app, launch_after, expires_at_ms } = self.how;
        field(
            &[replace_existing, close_running_app, launch_after, expires_at_ms > 0].map(u8::from),
        );
        Digest(hash.finalize().into())
    }

    /// The sum over the chosen items, before compression.
    pub fn estimated_bytes(&self) -> u64 {
        self.items.iter().map(|item| item.estimated_bytes).sum()
    }
}

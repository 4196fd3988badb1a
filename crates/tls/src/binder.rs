//! Which of several keys with one identity a host has: the binder of its offer tells (RFC 8446, 4.2.11.2).

use aws_lc_rs::{digest, hkdf, hmac};
use raceline_auth::{Hash, TlsPsk};
use zeroize::Zeroizing;

/// The functions that go with a key.
struct Functions {
    digest: &'static digest::Algorithm,
    hkdf: hkdf::Algorithm,
    hmac: hmac::Algorithm,
}

impl Functions {
    /// `None` for SHA-512, which no suite of TLS 1.3 has.
    fn of(hash: Hash) -> Option<Functions> {
        let (digest, hkdf, hmac) = match hash {
            Hash::Sha256 => (&digest::SHA256, hkdf::HKDF_SHA256, hmac::HMAC_SHA256),
            Hash::Sha384 => (&digest::SHA384, hkdf::HKDF_SHA384, hmac::HMAC_SHA384),
            Hash::Sha512 => return None,
        };
        Some(Functions { digest, hkdf, hmac })
    }

    /// HKDF-Expand-Label (RFC 8446, 7.1), as long as the output of the hash.
    fn expand(
        &self,
        secret: &hkdf::Prk,
        label: &str,
        context: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let mut out = Zeroizing::new(vec![0; self.digest.output_len()]);
        let len = u16::try_from(out.len()).ok()?.to_be_bytes();
        let (label_len, context_len) =
            ([u8::try_from(label.len() + 6).ok()?], [u8::try_from(context.len()).ok()?]);
        let info: [&[u8]; 6] =
            [&len, &label_len, b"tls13 ", label.as_bytes(), &context_len, context];
        let filled = secret.expand(&info, Len(out.len())).and_then(|okm| okm.fill(&mut out));
        filled.ok().map(|()| out)
    }
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// Whether this binder was made with this external key. `hello` is the handshake message of the ClientHello with its
/// header, up to the list of binders and without it. The time that this takes does not depend on the key.
pub(crate) fn is_of(psk: &TlsPsk, hello: &[u8], binder: &[u8]) -> bool {
    let verify = || {
        let functions = Functions::of(psk.hash())?;
        let hash = |data| digest::digest(functions.digest, data);
        let zeroes = [0; digest::MAX_OUTPUT_LEN];
        let salt = hkdf::Salt::new(functions.hkdf, &zeroes[..functions.digest.output_len()]);
        let early_secret = salt.extract(psk.key().expose());
        let binder_key = functions.expand(&early_secret, "ext binder", hash(&[]).as_ref())?;
        let binder_key = hkdf::Prk::new_less_safe(functions.hkdf, &binder_key);
        let finished_key = functions.expand(&binder_key, "finished", &[])?;
        let finished_key = hmac::Key::new(functions.hmac, &finished_key);
        hmac::verify(&finished_key, hash(hello).as_ref(), binder).ok()
    };
    verify().is_some()
}

SELECT sandbox.* FROM sandbox INDEXED BY sandbox_by_expiry WHERE sandbox.expires <= ? AND

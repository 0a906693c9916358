"""Record batches: their format, codecs, checks, and decoding to and encoding from columns."""

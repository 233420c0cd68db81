"""Is it paying? What a journal, or a log from elsewhere, can tell: dividends, uplift, other policies."""

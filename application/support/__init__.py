"""Tools that services share: retry, compensation, periodic tasks, threads, paging."""

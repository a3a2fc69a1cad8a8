"""What services share: retry, compensation, periodic tasks, threads, paging."""

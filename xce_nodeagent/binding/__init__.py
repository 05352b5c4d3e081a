"""Plan, ledger, execute, recover: from what a caller asks to what the kernel holds."""

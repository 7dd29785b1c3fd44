"""From reference and credentials to facts: tables, single flight, budgets."""

"""What proves the audit: public reports as code, random functions, hostile ones, the commands."""

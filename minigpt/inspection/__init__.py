"""The part inspection."""

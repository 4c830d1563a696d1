"""Plans and loops → C."""

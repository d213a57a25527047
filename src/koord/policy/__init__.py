"""Pure decisions that two or more programs share."""

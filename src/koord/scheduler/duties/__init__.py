"""What the leading scheduler does besides placing pods: keep the objects of its plugins up to date."""

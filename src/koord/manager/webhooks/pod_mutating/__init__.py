"""What koord changes on a pod when it is created: profiles, batch resources, quota trees, device shapes."""

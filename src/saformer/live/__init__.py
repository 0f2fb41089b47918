"""What runs beside a policy that acts: pages and servers. Nobody imports this but the commands."""

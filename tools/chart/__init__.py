"""Makes what is made from the chart: the schema of its values, and deploy/manifests."""

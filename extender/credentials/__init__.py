"""Who may pull what: keyrings, logins, pull secrets, Docker configuration, the kubelet's plugins, clouds."""

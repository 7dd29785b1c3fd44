"""Grafana's dashboards: what they show, and the program that writes their JSON into the chart."""

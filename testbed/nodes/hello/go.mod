module multiarch-extender.io/nodes/hello

go 1.24

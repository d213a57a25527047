module koord.local/assets/promtool

go 1.26.0

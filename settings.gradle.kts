rootProject.name = "alluvium"

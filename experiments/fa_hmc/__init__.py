"""The experiments of Liang, Zhang, Deng, Song and Lin (2024), section 5; see README.md here."""

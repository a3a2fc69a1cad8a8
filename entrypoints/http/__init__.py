"""The HTTP surface, on Litestar: handlers translate, call one service, and translate back."""

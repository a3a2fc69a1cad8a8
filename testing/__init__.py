"""For the tests of those who extend or use Antiphon.

- Contract tests for adapters: subclass one, override its fixtures, run pytest. They need pytest and
  pytest-asyncio. Each class has an example.
- `antiphon.testing.plugin`: pytest fixtures that serve the scripted models.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# So that a contract that fails shows the values that it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

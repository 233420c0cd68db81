"""shoal where the field already works: coba's learners, gymnasium's environments, obp's logged feedback."""

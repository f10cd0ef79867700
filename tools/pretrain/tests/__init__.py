"""Tests of the demo model's tools."""

"""An independent reference of the models that Perigee serves, written from the published facts."""

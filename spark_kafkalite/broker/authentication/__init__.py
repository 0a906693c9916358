"""How clients and brokers authenticate by SASL: the exchanges, the mechanisms of each listener, and the users."""

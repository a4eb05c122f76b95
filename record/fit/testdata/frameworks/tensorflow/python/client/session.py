class BaseSession:
    def __init__(self, target="", graph=None, config=None):
        self.config = config

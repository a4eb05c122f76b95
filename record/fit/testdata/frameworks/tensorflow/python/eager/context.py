class Context:
    limits = None
    growth = None

    def set_logical_device_configuration(self, device, configurations):
        self.limits = [c.memory_limit for c in configurations]

    def set_memory_growth(self, device, enable):
        self.growth = enable

class Worker:
    def __init__(self):
        print("the first engine")
